#!/bin/sh
# Make an environment in which Spark reads Delta tables, for the test that needs one: sh tools/delta_spark.sh .delta
# No Delta jar is published for the Spark that catchment runs on, so it is the newest Spark that has one, in an
# environment of its own. Needs Python, PyPI, Maven and a registry; the test is skipped where the folder is not there.
set -eu
folder=${1:-.delta}
spark=4.1
delta=4.1.0
if [ -e "$folder/.complete" ]; then exit 0; fi
mkdir -p "$folder"
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check "pyspark==$spark.*"
cat > "$folder/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>catchment</groupId><artifactId>delta</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>io.delta</groupId><artifactId>delta-spark_${spark}_2.13</artifactId><version>$delta</version></dependency>
  </dependencies>
</project>
POM
mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DoutputDirectory=jars -DincludeScope=runtime
touch "$folder/.complete"
