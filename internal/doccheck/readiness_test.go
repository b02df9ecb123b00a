package doccheck

import (
	"slices"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Every word by which /readyz names a cause is explained where a reader looks for
// it.
func TestReadinessCausesAreExplained(t *testing.T) {
	var explained []string
	for _, cell := range entries(t, read(t, troubleshooting), "Readiness") {
		explained = append(explained, codes(cell)...)
	}
	for _, cause := range broker.ReadinessCauses() {
		if !slices.Contains(explained, cause) {
			t.Errorf("%s does not explain the cause %q of /readyz", troubleshooting, cause)
		}
	}
}
