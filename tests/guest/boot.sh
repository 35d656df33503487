# Sourced by run and pair: their common options, and one guest.
# shellcheck shell=bash disable=SC2034

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

device=rxe memory=1024 limit=600 work=${TEST_TMPDIR:-$PWD} mtu=9000
verbose='' idle='' wait_port='' both=''

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2
  exit 125
}
die() {
  echo "guest: $*" >&2
  exit 125
}
# options OPTSTRING ARGS...: sets the variables above, and OPTIND
options() {
  local letters=$1 option
  shift
  while getopts "$letters" option; do
    case $option in
      b) both=1 ;;
      d) device=$OPTARG ;;
      i) idle=1 ;;
      m) memory=$OPTARG ;;
      M) mtu=$OPTARG ;;
      p) wait_port=$OPTARG ;;
      t) limit=$OPTARG ;;
      v) verbose=1 ;;
      w) work=$OPTARG ;;
      *) usage ;;
    esac
  done
  case $device in
    rxe | siw | none) ;;
    *) die "no such device: $device" ;;
  esac
  work=$(cd "$work" 2>/dev/null && pwd) || die "no such directory"
}

# What the guest's environment has of this one's, as shell commands. Its devices
# have no hardware: rcsock uses them only where a list names them.
environment() {
  local name
  printf 'export RCSOCK_DEVICES=%q\n' "${RCSOCK_DEVICES-*}"
  for name in "${!RCSOCK_@}" "${!GTEST_@}" "${!TEST_@}" RUNFILES_DIR \
    ${PASS_ENV:-}; do
    if [[ -v $name ]]; then printf 'export %s=%q\n' "$name" "${!name}"; fi
  done
}

# The kernel looks there at boot, and dies if there is none.
export HOME=${HOME:-/}

# With RCSOCK_TEST_DEVICE there is no guest: the command runs here, on it.
on_hardware() { [[ -n ${RCSOCK_TEST_DEVICE:-} ]]; }
hardware_environment() {
  # (Another sysfs is for tests/bench/hardware_test.sh.)
  local devices=${RCSOCK_TEST_SYSFS:-/sys}/class/infiniband netdev
  local port=${RCSOCK_TEST_PORT:-1}
  RDMA_DEV=${RCSOCK_TEST_DEVICE%%/*}
  if [[ ! -e $devices/$RDMA_DEV ]]; then
    die "RCSOCK_TEST_DEVICE=$RDMA_DEV: no such RDMA device here; there are:" \
      "$(ls "$devices" 2>/dev/null | paste -sd ' ' | grep . || echo none)"
  fi
  RDMA_NETDEV=$(rdma link show "$RDMA_DEV/$port" 2>/dev/null |
    sed -n 's/.* netdev \([^ ]*\).*/\1/p') || true
  if [[ -z $RDMA_NETDEV ]]; then
    # A port of InfiniBand has none of its own: IPoIB's, of the same function,
    # counts ports from 0.
    for netdev in "$devices/$RDMA_DEV"/device/net/*; do
      [[ $(cat "$netdev/dev_port" 2>/dev/null) == $((port - 1)) ]] || continue
      RDMA_NETDEV=$(basename "$netdev")
      break
    done
  fi
  [[ -n $RDMA_NETDEV ]] || die "$RDMA_DEV: its port $port has no network device"
  RDMA_IP=$(address -4) RDMA_IP6=$(address -6)
  [[ -n $RDMA_IP ]] || die "$RDMA_DEV: $RDMA_NETDEV has no IPv4 address"
  export RDMA_DEV RDMA_NETDEV RDMA_IP RDMA_IP6 PATH="$here/bin:$PATH" IN_GUEST=''
}
address() {
  ip -o "$1" addr show dev "$RDMA_NETDEV" scope global |
    awk '{sub("/.*", "", $4); print $4; exit}'
}

# The nth CPU of those that this process may use, counted from 0 and around.
cpu() {
  local -a cpus
  mapfile -t cpus < <(python3 -c \
    'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
  echo "${cpus[$1 % ${#cpus[@]}]}"
}

# Sets GUEST_CPU: one that no other guest of this user's has taken, if there is
# such a one, or else any.  Taken until this shell and its guest have ended.
take_cpu() {
  local count n file
  count=$(nproc)
  for ((n = 0; n < count; ++n)); do
    GUEST_CPU=$(cpu "$n")
    file=/dev/shm/rcsock-guest-cpu-$(id -u)-$GUEST_CPU
    # (Without such a folder, or somebody else's file there: any.)
    { exec {cpu_lock}>>"$file"; } 2>/dev/null || break
    flock -n "$cpu_lock" && return
    exec {cpu_lock}>&-
  done
  GUEST_CPU=$(cpu "$RANDOM")
}

# Where the guest's memory, a file, can be: it is executed from.
memory_directory() {
  local dir
  for dir in /dev/shm "${TMPDIR:-/tmp}"; do
    [[ -d $dir && ",$(findmnt -no OPTIONS -T "$dir")," != *,noexec,* ]] &&
      (($(df --output=avail -m "$dir" | tail -n 1) > memory)) &&
      echo "$dir" && return
  done
  die "neither /dev/shm nor ${TMPDIR:-/tmp} can hold $memory MiB of memory"
}

# boot JOB CPU KERNEL_ARGS... -- COMMAND...: runs the command in a guest and
# returns its status.  JOB is an empty directory.  While it runs, guest is the
# process to end; it also ends when this shell does.
boot() {
  local job=$1 cpu=$2 status=0 start
  local -a args=() pin=()
  shift 2
  while [[ $1 != -- ]]; do
    args+=("$1")
    shift
  done
  shift
  {
    printf '%s=%q\n' device "$device" mtu "$mtu" verbose "$verbose" work "$work" \
      wait_port "$wait_port" cwd "$PWD" own "${own:-1}" peer "${peer:-}" \
      mhz "$(awk '/^cpu MHz/ {print $4; exit}' /proc/cpuinfo)"
  } >"$job/settings"
  {
    environment
    printf 'exec'
    printf ' %q' "$@"
    echo
  } >"$job/command"

  # The kernel and the processes that it traces belong on one CPU: 3x faster.
  taskset -c "$cpu" true 2>/dev/null && pin=(taskset -c "$cpu")
  local -a env=(-u LD_PRELOAD TMPDIR="$(memory_directory)")
  [[ -z $idle ]] || env+=(UML_IDLE_PROCESSES=1)
  # Its first two terminals are what the command writes; the rest is the kernel's,
  # which may panic once it has powered off.
  start=$SECONDS
  env "${env[@]}" setpriv --pdeathsig TERM timeout -k 2 "$limit" "${pin[@]}" "$kernel" mem="${memory}M" \
    root=/dev/root rootfstype=hostfs rootflags=/ ro init="$here/init" \
    guest_job="$job" console=stderr0 con=null con0=null,fd:6 con1=null,fd:7 quiet \
    loglevel="${GUEST_LOGLEVEL:-3}" panic=-1 noreboot "${args[@]}" \
    </dev/null 6>&1 7>&2 >"$job/kernel" 2>&1 &
  guest=$!
  wait "$guest" 2>/dev/null || status=$?
  [[ -z $verbose ]] || sed 's/^/kernel: /' "$job/kernel" >&2
  if [[ -s $job/status ]]; then
    return "$(<"$job/status")"
  elif ((status != 0 && SECONDS - start >= limit)); then
    echo "guest: time limit of $limit s" >&2
    return 124
  fi
  [[ -n $verbose ]] || sed 's/^/kernel: /' "$job/kernel" >&2
  if [[ -s $job/why ]]; then
    echo "guest: $(<"$job/why")" >&2
    return 125
  fi
  echo "guest: died ($status)" >&2
  return 125
}
