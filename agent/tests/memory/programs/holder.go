// Allocates memory by commands on standard input: "hold FUNCTION PAGES" and "release", each answered with "ok".
package main

import (
	"bufio"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// Preallocated, so that the Go heap does not grow during the measurement.
var held = make([][]byte, 0, 1024)

//go:noinline
func reserve(pages int) []byte {
	size := uintptr(pages * 4096)
	address, _, code := syscall.RawSyscall6(syscall.SYS_MMAP, 0, size,
		syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON, ^uintptr(0), 0)
	if code != 0 {
		panic(code)
	}
	memory := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), pages*4096)
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
	// On the stack of a new goroutine.
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
				address, size := uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory))
				if _, _, code := syscall.RawSyscall(syscall.SYS_MUNMAP, address, size, 0); code != 0 {
					panic(code)
				}
			}
			held = held[:0]
		} else {
			panic(input.Text())
		}
		fmt.Println("ok")
	}
}
