// Package traefik exists so that make test-traefik can build Traefik for a test.
package traefik
