#!/bin/sh
# The S3 below the stand-in broker: SeaweedFS in one process, its data under /data. Its parts know each other by 127.0.0.1: with the
# container's address they would look for one another in vain after a restart that gives it another.
set -eu
umask 077
printf '{"identities":[{"name":"reef","credentials":[{"accessKey":"reef","secretKey":"%s"}],"actions":["Admin","Read","Write","List","Tagging"]}]}' \
    "$S3_SECRET" >/data/s3.json
mkdir -p /data/weed
exec weed -logtostderr=true mini -dir=/data/weed -ip=127.0.0.1 -ip.bind=0.0.0.0 -s3.port=8333 -s3.config=/data/s3.json \
    -bucket=tansu -s3.port.iceberg=0 -s3.port.lance=0 -admin.ui=false -webdav=false -master.telemetry=false
