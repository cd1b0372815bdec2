// Objects, strings, maps and typed arrays of about the given mebibytes in three isolates (worker_threads), with
// children that are started meanwhile. Prints digests.
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const { createHash } = require('crypto');
const { spawnSync } = require('child_process');

function mix(x) {
  x = Math.imul(x ^ (x >>> 16), 0x45d9f3b);
  x = Math.imul(x ^ (x >>> 16), 0x45d9f3b);
  return (x ^ (x >>> 16)) >>> 0;
}

function build(n) {
  return { number: n, text: 'text ' + mix(n).toString(36) + n, list: [n, mix(n + 1) / 7, String(mix(n))], next: null };
}

function work(name, mebibytes, say) {
  const count = mebibytes * 1400;
  const map = new Map();
  for (let n = 0; n < count; n++) map.set('key ' + n, build(n));
  const typed = [];
  for (let i = 0; i < mebibytes; i++) {
    const array = new Uint32Array(65536);
    for (let j = 0; j < array.length; j++) array[j] = mix(i * 65536 + j);
    typed.push(array);
  }
  const digest = () => {
    const hash = createHash('sha256');
    for (const [key, value] of map) hash.update(key + value.text + value.number + value.list.join());
    for (const array of typed) hash.update(array);
    return hash.digest('hex').slice(0, 16);
  };
  say(`${name} built ${map.size} ${digest()}`);
  for (let round = 0; round < 3; round++) {
    for (let n = round; n < count; n += 3) {
      const value = build(n + count * (round + 1));
      value.next = map.get('key ' + ((n * 7) % count));
      if (value.next) value.next.next = null;
      map.set('key ' + n, value);
    }
    for (const array of typed) array[round] += round + 1;
    typed[round] = typed[round].slice();
    say(`${name} round ${round} ${digest()}`);
  }
  const sorted = [...map.values()].sort((a, b) => (a.text < b.text ? -1 : 1));
  say(`${name} sorted ${createHash('sha256').update(sorted.map((v) => v.text).join()).digest('hex').slice(0, 16)}`);
}

if (isMainThread) {
  const mebibytes = Number(process.argv[2]);
  const lines = { };
  let left = 2;
  for (const w of [1, 2]) {
    lines[w] = [];
    const worker = new Worker(__filename, { workerData: { name: 'worker ' + w, mebibytes: mebibytes >> 2 } });
    worker.on('message', (line) => lines[w].push(line));
    worker.on('error', (error) => { throw error; });
    worker.on('exit', (code) => {
      if (code) process.exit(code);
      if (--left === 0) {
        // Workers' lines come as they like: in their order here.
        for (const w of [1, 2]) for (const line of lines[w]) console.log(line);
      }
    });
  }
  work('main', mebibytes >> 1, console.log);
  for (let i = 0; i < 3; i++) console.log(spawnSync('echo', ['child', String(i)]).stdout.toString().trim());
} else {
  work(workerData.name, workerData.mebibytes, (line) => parentPort.postMessage(line));
}
