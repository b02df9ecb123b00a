package main

import (
	"crypto/sha256"
	"crypto/subtle"
)

// adminUser is the one user of a node.
const adminUser = "admin"

// authenticator returns the check of the one user's password. Both are hashed,
// so that the comparison takes the same time whatever was sent.
func authenticator(password string) func(user, password string) (string, bool) {
	wantUser, want := sha256.Sum256([]byte(adminUser)), sha256.Sum256([]byte(password))
	return func(user, password string) (string, bool) {
		gotUser, got := sha256.Sum256([]byte(user)), sha256.Sum256([]byte(password))
		ok := subtle.ConstantTimeCompare(gotUser[:], wantUser[:]) & subtle.ConstantTimeCompare(got[:], want[:])
		return adminUser, ok == 1
	}
}
