// Objects in a map and in arrays: built, grouped, sorted, written as text. Prints a digest.
const crypto = require('crypto');

const COUNT = 450_000;
const table = new Map();
for (let i = 0; i < COUNT; i++)
  table.set(`key ${i}`, { id: i, value: (i * 7919) % 1000003, name: `name ${i * 31}`, tags: [i % 97, i % 89] });
const groups = new Map();
for (const [key, record] of table) {
  const group = groups.get(record.tags[0]) ?? [];
  group.push({ key, ...record });
  groups.set(record.tags[0], group);
}
const digest = crypto.createHash('sha256');
for (const number of [...groups.keys()].sort((a, b) => a - b)) {
  const group = groups.get(number).sort((a, b) => a.value - b.value);
  digest.update(JSON.stringify(group));
}
console.log(digest.digest('hex'));
