// Package traefik is there to build Traefik for a test, by make test-traefik.
package traefik
