"""multiprocessing over big shared data: METHOD (fork or spawn), KIND (list or array), MEBIBYTES.

With fork the workers read the parent's memory, part of which is swapped out, while the parent
goes on changing its own; with spawn each worker builds its own. Prints digests."""

import array
import hashlib
import multiprocessing
import sys


def build(kind, mebibytes, seed):
    if kind == "list":
        # A list of tuples of fresh objects: about 200 bytes an entry, most of it reference counts.
        return [(i * seed, str(i * 7 + seed), float(i)) for i in range(mebibytes * 2**20 // 200)]
    words = array.array("Q", bytes(8 * 1024))
    whole = array.array("Q")
    for block in range(mebibytes * 2**20 // 8192):
        words[0] = block * seed
        words[511] = block ^ seed
        whole.extend(words)
    return whole


def digest(data):
    state = hashlib.sha256()
    if isinstance(data, list):
        for entry in data:
            state.update(repr(entry).encode())
    else:
        state.update(data)
    return state.hexdigest()


def part_of(share, worker, workers):
    size = len(share) // workers
    part = share[worker * size : (worker + 1) * size]
    first = digest(part)
    if not isinstance(share, list):
        for i in range(0, len(share), 512):
            share[i] = worker
        assert all(share[i] == worker for i in range(0, len(share), 512))
    return worker, first


def in_worker(arguments):
    worker, workers, method, kind, mebibytes = arguments
    share = shared if method == "fork" else build(kind, mebibytes // workers, worker + 1)
    return part_of(share, worker, workers)


shared = None

if __name__ == "__main__":
    method, kind, mebibytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    workers = 3
    if method == "fork":
        shared = build(kind, mebibytes, 3)
    context = multiprocessing.get_context(method)
    # A process that took a second task would find the array as its first one left it.
    with context.Pool(workers, maxtasksperchild=1) as pool:
        tasks = [(worker, workers, method, kind, mebibytes) for worker in range(workers)]
        for worker, value in sorted(pool.map(in_worker, tasks, chunksize=1)):
            print("worker", worker, value)
    if shared is not None:
        print("parent", digest(shared))
