// Command coredns is CoreDNS with only the plugins that a test cluster needs: a quarter of the code to build.
package main

import (
	"github.com/coredns/coredns/coremain"

	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func init() {
	// The order in which plugins see a query.
	dnsserver.Directives = []string{"bind", "health", "ready", "errors", "kubernetes"}
}

func main() { coremain.Run() }
