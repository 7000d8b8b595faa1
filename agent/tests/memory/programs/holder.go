// Holds memory as it is told to: "hold FUNCTION PAGES" and "release" on standard input, each answered with "ok".
package main

import (
	"bufio"
	"fmt"
	"os"
	"syscall"
)

var held [][]byte

//go:noinline
func reserve(pages int) []byte {
	memory, err := syscall.Mmap(-1, 0, pages*4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		panic(err)
	}
	held = append(held, memory)
	return memory
}

//go:noinline
func applyBlock(pages int) {
	memory := reserve(pages)
	for page := 0; page < pages; page++ {
		memory[page*4096] = 1
	}
}

type context struct{ name string }

//go:noinline
func (c *context) commit(pages int) {
	memory := reserve(pages)
	for page := 0; page < pages; page++ {
		memory[page*4096] = c.name[0]
	}
}

//go:noinline
func validate(pages int) {
	done := make(chan bool)
	// On a stack of its own.
	go func() {
		memory := reserve(pages)
		for page := 0; page < pages; page++ {
			memory[page*4096] = 1
		}
		done <- true
	}()
	<-done
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for input.Scan() {
		var function string
		var pages int
		if count, _ := fmt.Sscanf(input.Text(), "hold %s %d", &function, &pages); count == 2 {
			switch function {
			case "apply_block":
				applyBlock(pages)
			case "commit":
				(&context{name: "x"}).commit(pages)
			case "validate":
				validate(pages)
			default:
				panic(function)
			}
		} else if input.Text() == "release" {
			for _, memory := range held {
				if err := syscall.Munmap(memory); err != nil {
					panic(err)
				}
			}
			held = nil
		} else {
			panic(input.Text())
		}
		fmt.Println("ok")
	}
}
