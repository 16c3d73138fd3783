#!/bin/sh
# Fetch the jars of an Apache Kafka broker into a folder, for the tests that need a real one: sh tools/kafka.sh .kafka
# Needs Maven, and a registry that it reaches; the tests are skipped where the folder is not there.
set -eu
folder=${1:-.kafka}
version=4.1.0
if [ -e "$folder/.complete" ]; then exit 0; fi
mkdir -p "$folder"
cat > "$folder/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>catchment</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
POM
mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DoutputDirectory=jars -DincludeScope=runtime
touch "$folder/.complete"
