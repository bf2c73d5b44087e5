package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTick is the unit of the times in /proc: USER_HZ, 100 on every Linux that
// Go runs on.
const clockTick = time.Second / 100

// cpuOf is the processor time that a process and its children, living and
// waited for, have used. For PostgreSQL this is the whole server: the postmaster
// waits for its backends.
func cpuOf(pid int) time.Duration {
	total := ticks(pid, true)
	for _, child := range childrenOf(pid) {
		total += ticks(child, true)
	}
	return time.Duration(total) * clockTick
}

// selfCPU is the processor time of this process without its children.
func selfCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func ticks(pid int, waited bool) int64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0 // it has ended; its parent has its time
	}
	// The name, in parentheses, may contain anything.
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(f) < 15 {
		return 0
	}
	n := number(f[11]) + number(f[12])
	if waited {
		n += number(f[13]) + number(f[14])
	}
	return n
}

// alive: the process is there, and has not ended unnoticed.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return len(f) > 0 && f[0] != "Z"
}

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

func childrenOf(pid int) []int {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var all []int
	for _, name := range files {
		b, _ := os.ReadFile(name)
		for _, f := range strings.Fields(string(b)) {
			all = append(all, int(number(f)))
		}
	}
	return all
}

// peakOf is the largest resident memory that a process has had, in bytes.
func peakOf(pid int) int64 { return status(pid, "VmHWM:") }

func status(pid int, name string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return number(strings.TrimSuffix(strings.TrimSpace(v), " kB")) << 10
		}
	}
	return 0
}

func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(b))
	if len(f) == 0 {
		return "?"
	}
	return f[0]
}
