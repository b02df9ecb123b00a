// Package api is the HTTP plane: routes, limits, status codes and bodies over
// the [Broker] that a node provides.
package api
