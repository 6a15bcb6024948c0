"""The MySQL and MariaDB engine, on PyMySQL."""
