// Command devcluster is a whole Kubernetes in one file: the control plane, the
// node's programs, kubectl and CoreDNS, linked together so that what they share
// is compiled, stored and held in the page cache once. Which of them a process
// becomes is told by the name it was called by (a symbolic link) or, failing
// that, by its first argument.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/coredns/coredns/coremain"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// What the cluster's DNS answers with; bind keeps it off the machine's own port 53.
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

// The flags that importing coremain registers on the process-wide flag set.
var coreDNSFlags = []string{"conf", "dns.port", "p", "pidfile", "plugins", "quiet", "version"}

// program looks up what to become. A nil answer means that there is no program of that name.
func program(name string) func() int {
	command := func(build func() *cobra.Command) func() int {
		return func() int { return cli.Run(build()) }
	}
	switch name {
	case "etcd":
		return func() int { etcdmain.Main(os.Args); return 0 }
	case "coredns":
		return func() int { coremain.Run(); return 0 }
	case "kube-apiserver":
		return command(apiserver.NewAPIServerCommand)
	case "kube-controller-manager":
		return command(controllers.NewControllerManagerCommand)
	case "kube-scheduler":
		return command(func() *cobra.Command { return scheduler.NewSchedulerCommand() })
	case "kube-proxy":
		return command(proxy.NewProxyCommand)
	case "kubelet":
		return command(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) })
	case "kubectl":
		return command(kubectl.NewDefaultKubectlCommand)
	}
	return nil
}

var names = []string{
	"coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet",
}

// withoutCoreDNSFlags rebuilds the process-wide flag set: kube-proxy takes all of
// it over, and CoreDNS's -version would otherwise shadow kube-proxy's.
func withoutCoreDNSFlags(all *flag.FlagSet) *flag.FlagSet {
	foreign := make(map[string]bool, len(coreDNSFlags))
	for _, name := range coreDNSFlags {
		foreign[name] = true
	}
	kept := flag.NewFlagSet(all.Name(), flag.ExitOnError)
	all.VisitAll(func(f *flag.Flag) {
		if !foreign[f.Name] {
			kept.Var(f.Value, f.Name, f.Usage)
		}
	})
	return kept
}

func main() {
	name := filepath.Base(os.Args[0])
	if program(name) == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	start := program(name)
	if start == nil {
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "usage: devcluster PROGRAM [ARGUMENT]...\nprograms: %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	if name != "coredns" {
		flag.CommandLine = withoutCoreDNSFlags(flag.CommandLine)
	}
	os.Exit(start())
}
