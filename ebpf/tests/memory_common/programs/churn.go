// Allocation workload with frame pointers and no .eh_frame: goroutines, maps, defers, closures, garbage collection.
package main

import (
	"bufio"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
)

type shape interface{ grow(depth int, seed uint32) int }
type small struct{ bytes []byte }
type large struct{ parts [][]byte }

func next(seed uint32) shape {
	if seed%2 == 0 {
		return &small{}
	}
	return &large{}
}
func (s *small) grow(depth int, seed uint32) int {
	s.bytes = make([]byte, 600+seed%3000)
	if depth == 0 {
		return len(s.bytes)
	}
	return next(seed/2).grow(depth-1, seed*31+7) + len(s.bytes)
}
func (l *large) grow(depth int, seed uint32) int {
	for i := 0; i < 3; i++ {
		l.parts = append(l.parts, make([]byte, 9000))
	}
	if depth == 0 {
		return len(l.parts)
	}
	call := func() int { return next(seed/3).grow(depth-1, seed*17+3) }
	return call() + len(l.parts)
}
func thrower(depth int) (sum int) {
	defer func() {
		if recover() != nil {
			sum = len(strings.Repeat("x", 5000))
		}
	}()
	if depth == 0 {
		panic("enough")
	}
	return thrower(depth-1) + 1
}
func work(seed uint32) int {
	sum := 0
	for round := 0; round < 200; round++ {
		sum += next(seed+uint32(round)).grow(round%60, seed+uint32(round))
		words := map[string]string{}
		for i := 0; i < 1500; i++ {
			words[fmt.Sprint(uint32(i)*(seed|1))] = strings.Repeat("a", i%200)
		}
		keys := []string{}
		for key := range words {
			keys = append(keys, key)
		}
		sort.Strings(keys)
		sum += len(keys) + thrower(round%20)
	}
	return sum
}

func main() {
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	in.ReadString('\n')
	var group sync.WaitGroup
	for i := uint32(0); i < 8; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			work(i)
		}()
	}
	group.Wait()
	fmt.Println("done")
	for {
		if _, err := in.ReadString('\n'); err != nil {
			return
		}
	}
}
