package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// bashWords stands in for what the script of cobra wants of the package
// bash-completion, where that is not installed.
const bashWords = `# Where bash-completion is not installed, this is what the rest needs of it.
if ! declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
    _get_comp_words_by_ref()
    {
        words=("${COMP_WORDS[@]}")
        cword=$COMP_CWORD
        cur=${COMP_WORDS[COMP_CWORD]}
        prev=${COMP_WORDS[COMP_CWORD-1]}
    }
fi

`

func newCompletion(p *process, root *cobra.Command) *cobra.Command {
	shell := func(name, where string, generate func() error) *cobra.Command {
		return &cobra.Command{
			Use: name, Short: "Print the completion script for " + name,
			Long:    "Print the completion script for " + name + ".\n\nFor this shell:\n\n  " + where,
			Example: "  tidemark completion " + name,
			Args:    args(),
			RunE:    func(*cobra.Command, []string) error { return generate() },
		}
	}
	return family("completion", "Print completion scripts for shells", "  source <(tidemark completion bash)",
		shell("bash", "source <(tidemark completion bash)", func() error {
			if _, err := fmt.Fprint(p.stdout, bashWords); err != nil {
				return err
			}
			return root.GenBashCompletionV2(p.stdout, true)
		}),
		shell("zsh", "source <(tidemark completion zsh)", func() error { return root.GenZshCompletion(p.stdout) }),
		shell("fish", "tidemark completion fish | source", func() error { return root.GenFishCompletion(p.stdout, true) }),
		shell("powershell", "tidemark completion powershell | Out-String | Invoke-Expression", func() error { return root.GenPowerShellCompletionWithDesc(p.stdout) }),
	)
}
