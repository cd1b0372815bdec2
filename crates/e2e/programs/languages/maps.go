// Maps, slices and strings of about the given mebibytes, changed by goroutines while the garbage collector
// runs beside them; some memory is given back to the system and taken again. Prints check sums.
package main

import (
	"fmt"
	"hash/crc64"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sort"
	"strconv"
	"sync"
)

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

var table = crc64.MakeTable(crc64.ECMA)

type entry struct {
	name   string
	values []uint64
	next   *entry
}

func build(n uint64) *entry {
	e := &entry{name: fmt.Sprintf("entry %d of %x", n, mix(n)), values: make([]uint64, 20+n%40)}
	for i := range e.values {
		e.values[i] = mix(n + uint64(i))
	}
	return e
}

// In the order in which they were made: in that of the maps each step would be to another page.
func sum(shards []map[uint64]*entry) uint64 {
	var total uint64
	for s, shard := range shards {
		for n := uint64(0); n < uint64(len(shard)); n++ {
			key := n*4 + uint64(s)
			e := shard[key]
			total = total*31 + mix(key) + uint64(crc64.Checksum([]byte(e.name), table))
			for _, value := range e.values {
				total = total*31 + value
			}
		}
	}
	return total
}

func main() {
	mebibytes, _ := strconv.Atoi(os.Args[1])
	count := uint64(mebibytes) * 2200
	shards := make([]map[uint64]*entry, 4)
	var wait sync.WaitGroup
	all := func(work func(s int, shard map[uint64]*entry)) {
		for s := range shards {
			wait.Add(1)
			go func(s int) { defer wait.Done(); work(s, shards[s]) }(s)
		}
		wait.Wait()
	}
	all(func(s int, _ map[uint64]*entry) {
		shards[s] = map[uint64]*entry{}
		for n := uint64(s); n < count; n += 4 {
			shards[s][n] = build(n)
		}
	})
	fmt.Println("built", sum(shards))
	for round := uint64(0); round < 3; round++ {
		all(func(s int, shard map[uint64]*entry) {
			for n := uint64(s); n < count; n += 4 {
				if (n/4+round)%3 == 0 {
					e := build(n + count*(round+1))
					e.next = shard[(n+40)%(count/4*4)]
					if e.next != nil {
						e.next.next = nil
					}
					shard[n] = e
				}
			}
		})
		if round == 1 {
			runtime.GC()
			debug.FreeOSMemory()
		}
		fmt.Println("round", round, sum(shards))
	}
	// A child by fork and exec, while there is much memory.
	said, err := exec.Command("echo", "a child's").Output()
	fmt.Print(string(said))
	if err != nil {
		panic(err)
	}
	names := make([]string, 0, count)
	for _, shard := range shards {
		for _, e := range shard {
			names = append(names, e.name)
		}
	}
	sort.Strings(names)
	hash := crc64.New(table)
	for _, name := range names {
		hash.Write([]byte(name))
	}
	fmt.Println("sorted", len(names), hash.Sum64())
	fmt.Println("last", sum(shards))
}
