//go:build tools

// Package tools pins a program that the rack builds from source.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
