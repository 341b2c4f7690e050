//go:build tools

// Package tools pins a program that the rack builds from source.
package tools

import _ "sigs.k8s.io/metrics-server/cmd/metrics-server"
