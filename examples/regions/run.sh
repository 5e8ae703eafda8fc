#!/usr/bin/env bash
# Starts three regions on this machine, 150 ms apart, and stops them at Ctrl-C. It needs redis-server, Go, and bin/weir: make build.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
weir=${WEIR:-$(cd "$here/../.." && pwd)/bin/weir}
rtt=${RTT:-150ms}
for program in redis-server go curl openssl; do
	command -v "$program" >/dev/null || { echo "$program isn't installed" >&2; exit 1; }
done
unset "${!WEIR_@}" # they would be settings of all three
[[ -x $weir ]] || { echo "$weir isn't there: run make build in the project's folder first" >&2; exit 1; }

dir=$(mktemp -d)
pids=()
stop() {
	trap - EXIT INT TERM
	kill "${pids[@]}" 2>/dev/null || true
	wait "${pids[@]}" 2>/dev/null || true
	rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM

# Region n has the ports 77n0 (Redis), 77n1 (checks), 77n2 (admin) and 77n4 (other regions). The proxy from region n to region m
# has the port 78nm.
regions=(us eu ap)
ways=()
openssl rand -hex 32 >"$dir/secret"
chmod 600 "$dir/secret"
mkdir "$dir/cut"
for n in 0 1 2; do
	peers=
	for m in 0 1 2; do
		if ((n != m)); then
			ways+=("${regions[n]},${regions[m]},127.0.0.1:78$n$m,127.0.0.1:77${m}4")
			peers+="  ${regions[m]}: [127.0.0.1:78$n$m]"$'\n'
		fi
	done
	mkdir "$dir/${regions[n]}"
	cat >"$dir/${regions[n]}/weir.yaml" <<-END
		store: redis://127.0.0.1:77${n}0
		http: 127.0.0.1:77${n}1
		admin: 127.0.0.1:77${n}2
		grpc: ""
		rules: rules.yaml
		log_format: json
		regions:
		  name: ${regions[n]}
		  home: us
		  listen: 127.0.0.1:77${n}4
		  secret_file: $dir/secret
		  peers:
	END
	sed 's/^/  /' <<<"${peers%$'\n'}" >>"$dir/${regions[n]}/weir.yaml"
	cp "$here/rules.yaml" "$dir/${regions[n]}/"
done

(cd "$here" && go build -o "$dir/network" .)
"$dir/network" -rtt "$rtt" -cuts "$dir/cut" "${ways[@]}" &
pids+=($!)
for n in 0 1 2; do
	cd "$dir/${regions[n]}"
	redis-server --port "77${n}0" --bind 127.0.0.1 --save '' --appendonly no --dir . >redis.log &
	pids+=($!)
	"$weir" serve 2>weir.log >&2 &
	pids+=($!)
done
for n in 0 1 2; do
	for ((i = 0; ; i++)); do
		curl -fs "127.0.0.1:77${n}1/readyz" >/dev/null && break
		((i < 100)) || { echo "region ${regions[n]} doesn't start:" >&2; cat "$dir/${regions[n]}/weir.log" >&2; exit 1; }
		sleep 0.1
	done
done

cat <<END
Three regions, $rtt apart. us, the home, takes checks at port 7701, eu at 7711, ap at 7721. In another terminal:

  curl -s 127.0.0.1:7711/v1/check -d '{"method": "GET", "path": "/search", "attributes": {"user": "ada"}}'
  $weir regions --admin 127.0.0.1:7712

  touch $dir/cut/eu     # cut eu off
  rm $dir/cut/eu        # and heal it

Each region follows its own rules: $dir/eu/rules.yaml. Its log is beside them. Ctrl-C stops everything.
END
wait -n "${pids[@]}" || true
echo "something has ended: see $dir" >&2
trap - EXIT
kill "${pids[@]}" 2>/dev/null || true
exit 1
