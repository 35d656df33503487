# The server of pair_test.sh: rping for several clients, and an echo over TCP.
# shellcheck shell=bash
set -euo pipefail

rping -s -P -p 7175 >/dev/null &
if [[ -n $RDMA_IP6 ]]; then rping -s -P -a "$RDMA_IP6" -p 7176 >/dev/null & fi
perl -MIO::Socket -e '
  my $l = IO::Socket::INET->new(LocalPort => 7177, Listen => 9, ReuseAddr => 1) or die;
  while (my $s = $l->accept) { print $s scalar <$s>; }' &
for port in 7175 ${RDMA_IP6:+7176} 7177; do
  guestctl listening "$port"
done
rping -s -P -p 7174 >/dev/null &
guestctl await done 100 >/dev/null
