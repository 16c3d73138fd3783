#!/bin/sh
# Fetch the JDBC driver of Arrow Flight SQL into a folder, for the test that reads results with it: sh tools/jdbc.sh .jdbc
# Needs Maven, and a registry that it reaches; the test is skipped where the folder is not there.
set -eu
folder=${1:-.jdbc}
version=18.3.0
if [ -e "$folder/.complete" ]; then exit 0; fi
mkdir -p "$folder"
mvn -q -B dependency:copy -Dartifact=org.apache.arrow:flight-sql-jdbc-driver:$version -DoutputDirectory="$PWD/$folder"
touch "$folder/.complete"
