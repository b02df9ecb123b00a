package objstore_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// A node builds the parts that its stores share once, wraps each backend, and
// gives every component a view that says why it makes requests.
func Example() {
	limiter := objstore.NewLimiter(objstore.Limits{}, nil)
	budget := objstore.NewRetryBudget(0, 0)
	store := objstore.Stack(mem.New("example", nil), objstore.StackOptions{Limiter: limiter, Budget: budget})
	defer store.Close()

	ctx := context.Background()
	chain := objstore.For(store, objstore.CauseChain)
	for _, node := range []string{"a", "b"} {
		entry := "entry of node " + node
		err := chain.Put(ctx, "m/00000000000000000001", strings.NewReader(entry), int64(len(entry)), objstore.PutOptions{CreateOnly: true})
		if errcode.Is(err, errcode.Exists) {
			fmt.Println("node", node, "lost the race")
		}
	}
	data, _, err := objstore.ReadAll(ctx, chain, "m/00000000000000000001", 1<<20)
	fmt.Println(string(data), err)
	// Output:
	// node b lost the race
	// entry of node a <nil>
}
