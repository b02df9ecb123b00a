package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"sync/atomic"
)

// adminUser is the one user of a node.
const adminUser = "admin"

// gate checks the one user's password, which can be exchanged.
type gate struct {
	want atomic.Pointer[[sha256.Size]byte]
}

// use takes another password. Who asks from then on needs it.
func (g *gate) use(password string) {
	sum := sha256.Sum256([]byte(password))
	g.want.Store(&sum)
}

var adminSum = sha256.Sum256([]byte(adminUser))

// authenticate names the user. Both texts are hashed, so that the comparison
// takes the same time whatever was sent.
func (g *gate) authenticate(user, password string) (string, bool) {
	gotUser, got := sha256.Sum256([]byte(user)), sha256.Sum256([]byte(password))
	ok := subtle.ConstantTimeCompare(gotUser[:], adminSum[:]) & subtle.ConstantTimeCompare(got[:], g.want.Load()[:])
	return adminUser, ok == 1
}
