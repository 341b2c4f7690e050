//go:build tools

// Package tools pins a program that the rack builds from source.
package tools

import _ "go.etcd.io/etcd/server/v3"
