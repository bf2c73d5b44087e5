//go:build unix

package supervise

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

type entry struct {
	parent int
	state  byte // as ps names it: R, S, T, Z …
}

// processTable lists the processes of this machine: from /proc where there is one (Linux images often lack ps),
// else from ps.
func processTable() (map[int]entry, error) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	if len(files) == 0 {
		return psTable()
	}
	table := make(map[int]entry, len(files))
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // it ended meanwhile
		}
		// pid (name) state ppid …; the name may contain anything, so look for the last bracket.
		end := bytes.LastIndexByte(line, ')')
		if end < 0 {
			continue
		}
		fields := strings.Fields(string(line[end+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || len(fields) < 2 {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		table[pid] = entry{parent: parent, state: fields[0][0]}
	}
	return table, nil
}

func psTable() (map[int]entry, error) {
	out, err := exec.Command("ps", "-axo", "pid=,ppid=,state=").Output()
	if err != nil {
		return nil, fmt.Errorf("supervise: list processes with ps: %w", err)
	}
	table := map[int]entry{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		pid, err := strconv.Atoi(fields[0])
		if err != nil {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		table[pid] = entry{parent: parent, state: fields[2][0]}
	}
	return table, nil
}

// descendants lists the living children of pid, their children, and so on.
func descendants(table map[int]entry, pid int) []int {
	var family []int
	for child, e := range table {
		if e.parent == pid && e.state != 'Z' {
			family = append(family, child)
			family = append(family, descendants(table, child)...)
		}
	}
	return family
}
