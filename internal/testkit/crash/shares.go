package crash

// shares says how many of a thousand histories each model makes. The dear ones
// (a history of the engine opens Pebble, one of a node Raft as well) make few.
var shares = map[string]int{
	"wal":       440,
	"segment":   220,
	"chain":     170,
	"queue":     100,
	"partition": 66,
	"node":      4,
}
