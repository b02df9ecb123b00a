package crash

import (
	"math/rand/v2"
	"sync"
)

// Shot is a file system stopped before one of its changes.
type Shot[S any] struct {
	FS    *FS // as the death of the process leaves it; Losses gives what power losses leave
	State S   // the model at that moment
	Op    Op  // the change that did not happen
	N     int // its number
}

// Camera takes shots of a file system: of all of its changes while they are
// few, else of as many as it may, each change as likely as any other.
type Camera[S any] struct {
	// Only says which changes are looked at; nil = all. It is set before the
	// first change.
	Only func(Op) bool

	state func() S
	fault func(Op) (Fault, error)
	most  int

	mu    sync.Mutex
	rng   *rand.Rand
	shots []Shot[S]
	seen  int
}

// Film begins to take up to most shots of fs. state returns a copy of what the
// model promises; it is called in the goroutine that makes a change, so it
// takes the model's lock, under which the model must not use fs.
func Film[S any](fs *FS, rng *rand.Rand, most int, state func() S) *Camera[S] {
	return FilmFaults(fs, rng, most, state, nil)
}

// FilmFaults is Film with a say in what fails. A change that fails is still
// one before which the power may go.
func FilmFaults[S any](fs *FS, rng *rand.Rand, most int, state func() S, fault func(Op) (Fault, error)) *Camera[S] {
	c := &Camera[S]{state: state, fault: fault, most: most, rng: rand.New(rand.NewPCG(rng.Uint64(), 1))}
	fs.Hook(func(op Op) (Fault, error) {
		c.Look(fs, op)
		if c.fault == nil {
			return Pass, nil
		}
		return c.fault(op)
	})
	return c
}

// Look is called before every change; a model calls it for moments of its own,
// a request to the bucket for example.
func (c *Camera[S]) Look(fs *FS, op Op) {
	if c.Only != nil && !c.Only(op) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen++
	at := len(c.shots)
	if at >= c.most {
		if at = c.rng.IntN(c.seen); at >= c.most {
			return
		}
	} else {
		c.shots = append(c.shots, Shot[S]{})
	}
	// The state first: what is acknowledged after this line may be on this
	// disk and need not be.
	state := c.state()
	c.shots[at] = Shot[S]{FS: fs.Kill(), State: state, Op: op, N: c.seen}
}

// Take returns the shots and begins anew.
func (c *Camera[S]) Take() []Shot[S] {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.shots
	c.shots, c.seen = nil, 0
	return out
}
