# Sidekiq: run as a program it publishes with push_bulk; loaded by the sidekiq command it is the worker.
require 'sidekiq'

TASKS = ENV.fetch('TASKS').to_i
Sidekiq.configure_client { |config| config.redis = { url: ENV.fetch('URL') } }
Sidekiq.configure_server { |config| config.redis = { url: ENV.fetch('URL') } }

class Noop
  include Sidekiq::Worker

  def perform(number)
    return unless number == TASKS / 10 || number == TASKS - 1

    File.write(ENV.fetch('MARKS'), "#{Process.clock_gettime(Process::CLOCK_MONOTONIC)}\n", mode: 'a')
  end
end

if $PROGRAM_NAME == __FILE__
  (0...TASKS).each_slice(1000) do |numbers|
    Sidekiq::Client.push_bulk('class' => Noop, 'args' => numbers.map { |number| [number] })
  end
end
