#!/bin/sh
# Make an environment for each engine that catchment is measured beside: sh tools/peers.sh .peers
# Needs a package index, and Maven with a registry for Flink's Parquet format. What cannot be installed is named, and the
# benchmark runs without it.
set -u
folder=${1:-.peers}
python=${PYTHON:-python3}
flink=2.3.0
mkdir -p "$folder"

make_environment() { # name, packages...
    name=$1; shift
    if [ -e "$folder/$name/.complete" ]; then return 0; fi
    echo "installing $name"
    "$python" -m venv "$folder/$name" \
        && "$folder/$name/bin/pip" install -q "$@" > "$folder/$name.log" 2>&1 \
        && touch "$folder/$name/.complete" \
        || { echo "$name cannot be installed here: $(tail -1 "$folder/$name.log")"; rm -rf "${folder:?}/$name"; return 1; }
}

make_environment polars polars
make_environment pathway pathway pandas pyarrow
make_environment flink "apache-flink==$flink" && [ ! -e "$folder/flink/jars/.complete" ] && {
    mkdir -p "$folder/flink/jars"
    cat > "$folder/flink/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>catchment</groupId><artifactId>peers</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-sql-parquet</artifactId><version>$flink</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-shaded-hadoop-2-uber</artifactId><version>2.8.3-10.0</version></dependency>
  </dependencies>
</project>
POM
    mvn -q -B -f "$folder/flink/pom.xml" dependency:copy-dependencies -DoutputDirectory=jars -DexcludeTransitive=true \
        && touch "$folder/flink/jars/.complete" || echo "Flink reads no Parquet here: Maven has not found its jars"
}
exit 0
