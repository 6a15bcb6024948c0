"""Test help that ships: a clock to turn by hand, programs with known answers, and the conformance suite for stores."""
