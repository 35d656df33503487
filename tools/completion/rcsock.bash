# bash completion for rcsock(1)                            -*- shell-script -*-

_rcsock() {
  local cur prev words cword split
  _init_completion -s || return

  local i command=
  for ((i = 1; i < cword; i++)); do
    if [[ ${words[i]} != -* ]]; then
      command=${words[i]}
      break
    fi
  done
  if [[ -z $command ]]; then
    mapfile -t COMPREPLY < <(compgen -W \
      'run stat doctor perf --help --version' -- "$cur")
    return
  fi

  # A command with arguments of its own follows the options of `run`.
  if [[ $command == run ]]; then
    for ((i++; i < cword; i++)); do
      case ${words[i]} in
        --)
          _command_offset $((i + 1))
          return
          ;;
        --lanes | --profile | --peers | --meet-dir | --stats | --log | --log-file | --config)
          [[ ${words[i + 1]:-} == = ]] && ((i++))
          ((i++))
          ;;
        -*) ;;
        *)
          _command_offset "$i"
          return
          ;;
      esac
    done
  fi

  case $prev in
    --lanes)
      mapfile -t COMPREPLY < <(compgen -W 'auto shm rdma shm,rdma tcp' -- "$cur")
      return
      ;;
    --profile)
      mapfile -t COMPREPLY < <(compgen -W 'latency balanced efficient' -- "$cur")
      return
      ;;
    --peers)
      mapfile -t COMPREPLY < <(compgen -u -- "$cur")
      return
      ;;
    --transport)
      mapfile -t COMPREPLY < <(compgen -W 'auto shm rdma tcp verbs' -- "$cur")
      return
      ;;
    --memory)
      mapfile -t COMPREPLY < <(compgen -W 'host gpu' -- "$cur")
      return
      ;;
    --log)
      mapfile -t COMPREPLY < <(compgen -W '0 1 2' -- "$cur")
      return
      ;;
    --stats | --log-file | --config | --report)
      _filedir
      return
      ;;
    --meet-dir)
      _filedir -d
      return
      ;;
    --pid)
      _pids
      return
      ;;
    --watch | --over | --serve | --timeout | --port | -p | --affinity | -A)
      return
      ;;
  esac
  $split && return

  case $command:$cur in
    *:-*)
      # The options are those that the command's --help prints.
      mapfile -t COMPREPLY < <(compgen -W "$("$1" "$command" --help 2>/dev/null |
        grep -oE -- '(^ +|,)--?[a-zA-Z][-a-zA-Z]*' | tr -d ' ,' | sort -u)" -- "$cur")
      ;;
    run:*)
      mapfile -t COMPREPLY < <(compgen -c -- "$cur")
      ;;
    doctor:*)
      _known_hosts_real -- "$cur"
      ;;
  esac
} &&
  complete -F _rcsock rcsock
