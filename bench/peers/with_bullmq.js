// BullMQ: "fill" publishes with addBulk, "work" works with a hundred places.
const fs = require('fs');
const { Queue, Worker } = require('bullmq');

const tasks = Number(process.env.TASKS);
const url = new URL(process.env.URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };

async function fill() {
  const queue = new Queue('peer', { connection });
  for (let start = 0; start < tasks; start += 1000) {
    const jobs = [];
    for (let n = start; n < Math.min(start + 1000, tasks); n++) jobs.push({ name: 'noop', data: { n } });
    await queue.addBulk(jobs);
  }
  await queue.close();
}

function work() {
  new Worker('peer', async (job) => {
    if (job.data.n === Math.floor(tasks / 10) || job.data.n === tasks - 1) {
      fs.appendFileSync(process.env.MARKS, `${Number(process.hrtime.bigint()) / 1e9}\n`);
    }
  }, { connection, concurrency: 100 });
}

if (process.argv[2] === 'fill') fill(); else work();
