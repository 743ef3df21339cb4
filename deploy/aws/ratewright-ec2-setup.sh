#!/usr/bin/env bash
# Sets an EC2 instance up as an allocator, a relay or a host. cloud-init runs it once, as root.
# Settings come from /etc/ratewright/ec2.env: ROLE, PACKAGES, CERTIFICATES, PARAMETERS, TOPOLOGY,
# ALLOCATOR_ADDRESS, QUIC_PORT, UDP_PORT, SHARDS, PCA_ARN, PCA_TEMPLATE_ARN.
set -euo pipefail
umask 077

etc=/etc/ratewright
imds=http://169.254.169.254
instance_id='' region=''

say() { printf 'ratewright-ec2-setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# retry COMMAND…: again after 0.25, 0.5, 0.75, 1.25, 2, … s, for about two minutes in all
retry() {
  local pause=25 next=50 sum
  until "$@"; do
    [ "$pause" -lt 6000 ] || die "gave up: $1 failed for two minutes"
    sleep "$((pause / 100)).$(printf '%02d' "$((pause % 100))")"
    sum=$((pause + next)); pause=$next; next=$sum
  done
}

# IMDSv2 alone: a token first, then the question. It may refuse in the first seconds of a boot.
token() {
  token=$(curl -fsS -m 2 -X PUT "$imds/latest/api/token" -H 'X-aws-ec2-metadata-token-ttl-seconds: 300')
}
metadata() { # metadata VARIABLE PATH
  local answer
  answer=$(curl -fsS -m 2 "$imds/latest/meta-data/$2" -H "X-aws-ec2-metadata-token: $token") || return
  printf -v "$1" '%s' "$answer"
}

# shellcheck source=/dev/null
. "$etc/ec2.env"
retry token
retry metadata instance_id instance-id
retry metadata region placement/region
export AWS_DEFAULT_REGION=$region

case $ROLE in
  allocator) name=ratewright-allocator; program=ratewright-allocator ;;
  relay) name=relay-$instance_id; program=ratewright-allocator ;;
  host) name=$instance_id; program=ratewright-endpointd ;;
  *) die "ROLE is $ROLE; it must be allocator, relay or host" ;;
esac

# Programs: from the machine image, from a repository that the image knows, or from a bucket.
install_packages() {
  case $PACKAGES in
    image) ;;
    repository)
      if command -v dnf >/dev/null; then dnf -y -q install "$program"
      else apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install "$program"; fi ;;
    s3://*)
      local folder kind
      folder=$(mktemp -d)
      kind=rpm; command -v dnf >/dev/null || kind=deb
      aws s3 cp --only-show-errors --recursive "$PACKAGES" "$folder" --exclude '*' \
        --include "$program*.$kind" || return
      if [ "$kind" = rpm ]; then dnf -y -q install "$folder"/*.rpm
      else DEBIAN_FRONTEND=noninteractive apt-get -qq -y install "$folder"/*.deb; fi
      rm -rf "$folder" ;;
    *) die "PACKAGES is $PACKAGES; it must be image, repository or s3://BUCKET/PREFIX/" ;;
  esac
}
retry install_packages
command -v "$program" >/dev/null || die "$program is not installed"

parameter() { # parameter NAME FILE MODE
  local value
  value=$(aws ssm get-parameter --with-decryption --name "$1" --query Parameter.Value --output text) || return
  printf '%s\n' "$value" > "$2.new"
  chmod "$3" "$2.new"
  mv "$2.new" "$2"
}

issue_by_pca() {
  local folder arn
  folder=$(mktemp -d)
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$folder/key" \
    -subj "/CN=$name" -addext "subjectAltName=DNS:$name" -out "$folder/csr" 2>/dev/null || return
  arn=$(aws acm-pca issue-certificate --certificate-authority-arn "$PCA_ARN" --csr "fileb://$folder/csr" \
    --signing-algorithm SHA256WITHECDSA --validity Value=7,Type=DAYS --template-arn "$PCA_TEMPLATE_ARN" \
    --query CertificateArn --output text) || return
  aws acm-pca wait certificate-issued --certificate-authority-arn "$PCA_ARN" --certificate-arn "$arn" || return
  aws acm-pca get-certificate --certificate-authority-arn "$PCA_ARN" --certificate-arn "$arn" \
    --query Certificate --output text > "$etc/$name.pem" || return
  aws acm-pca get-certificate-authority-certificate --certificate-authority-arn "$PCA_ARN" \
    --query Certificate --output text > "$etc/ca.pem" || return
  # Readable for the allocator's user, unlike what the umask gives.
  chmod 644 "$etc/$name.pem" "$etc/ca.pem"
  mv "$folder/key" "$etc/$name.key"
  rm -rf "$folder"
}

case $CERTIFICATES in
  ssm)
    retry parameter "$PARAMETERS/ca" "$etc/ca.pem" 644
    retry parameter "$PARAMETERS/$name/certificate" "$etc/$name.pem" 644
    retry parameter "$PARAMETERS/$name/key" "$etc/$name.key" 600 ;;
  acm-pca) retry issue_by_pca ;;
  *) die "CERTIFICATES is $CERTIFICATES; it must be ssm or acm-pca" ;;
esac

case $ROLE in
  host)
    cat > "$etc/endpointd.toml" <<EOF
host = "$name"
allocator = ["$ALLOCATOR_ADDRESS:$QUIC_PORT"]
admin = "unix:/run/ratewright/endpointd.sock"

[tls]
ca = "ca.pem"
cert = "$name.pem"
key = "$name.key"
EOF
    unit=ratewright-endpointd ;;
  allocator)
    retry aws s3 cp --only-show-errors "$TOPOLOGY" "$etc/topology.toml"
    cat > "$etc/allocator.toml" <<EOF
listen = "0.0.0.0:$QUIC_PORT"
admin = "unix:/run/ratewright-allocator/admin.sock"
topology = "topology.toml"

[tls]
ca = "ca.pem"
cert = "$name.pem"
key = "$name.key"

[transport]
udp_port = $UDP_PORT
shards = $SHARDS
EOF
    unit=ratewright-allocator ;;
  relay)
    retry parameter "$PARAMETERS/relay" "$etc/relay.toml" 644
    unit=ratewright-relay ;;
esac
if getent group ratewright-allocator >/dev/null && [ "$ROLE" != host ]; then
  chgrp ratewright-allocator "$etc/$name.key"
  chmod 640 "$etc/$name.key"
fi
chmod 755 "$etc"
chmod 644 "$etc"/*.toml
systemctl enable "$unit"
systemctl restart "$unit"
say "$ROLE $name is set up"
