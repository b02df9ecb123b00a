package crash

// shares says how many of a thousand histories each model makes. The dear ones
// (a history of the engine opens Pebble, one of a node Raft as well) make few.
var shares = map[string]int{
	"wal":       374,
	"segment":   220,
	"chain":     170,
	"objects":   60,
	"queue":     100,
	"partition": 66,
	"node":      10,
}

// idle is how many runs of a model go on at once on each processor, where they
// wait for clocks more than they compute; 1 where nothing is said.
var idle = map[string]int{"node": 4}
