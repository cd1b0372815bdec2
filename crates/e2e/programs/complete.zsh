# Prints what an interactive zsh shows after LINE and the key of completion:
#
#     zsh -f complete.zsh FOLDER LINE
#
# FOLDER has the completion functions. The answer is complete when the shell has drawn what the key ^T prints after it.
zmodload zsh/zpty
zpty shell zsh -f -i
TRAPEXIT() { zpty -d shell }
zpty -w shell "stty -echo cols 200; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w shell "setopt no_always_last_prompt; LISTMAX=1000; unset zle_bracketed_paste"
zpty -w shell "done-line() { zle -I; print DO''NE }; zle -N done-line; bindkey '^T' done-line; print REA''DY"
zpty -r shell seen '*READY*' || exit 1
zpty -w -n shell "$2"$'\t\C-T'
zpty -r shell seen '*DONE*' || exit 1
print -r -- "$seen"
