// Package doccheck holds the documents of the repository to the code: metrics
// and refusals that are described exist, those that exist are described, and
// links lead somewhere. It is tests only.
package doccheck
