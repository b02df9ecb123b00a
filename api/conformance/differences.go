package conformance

import (
	"fmt"
	"strings"
)

// difference is a line of docs/compatibility.md.
type difference struct {
	id      string
	shownBy string // "suite", or a test in a package
}

// parseDifferences reads the table of docs/compatibility.md.
func parseDifferences(page string) (list []difference, err error) {
	seen := map[string]bool{}
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		id := strings.Trim(strings.TrimSpace(cells[0]), "`")
		if len(cells) != 5 || id == "id" || strings.HasPrefix(id, "---") {
			continue
		}
		if seen[id] {
			return nil, fmt.Errorf("the difference %q is there twice", id)
		}
		seen[id] = true
		list = append(list, difference{id: id, shownBy: strings.TrimSpace(cells[4])})
	}
	return list, nil
}
