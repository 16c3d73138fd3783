#!/bin/sh
# Make an environment for each engine that catchment is measured beside: sh tools/peers.sh .peers
# Needs a package index, and Maven with a registry for Flink's formats and the connectors of Kafka. What cannot be installed is named, and the
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

fetch_jars() { # folder, what is missing without them, group:artifact:version...
    name=$1; missing=$2; shift 2
    jars="$folder/$name/jars"
    mkdir -p "$jars"
    if [ "$(cat "$jars/.complete" 2>/dev/null)" = "$*" ]; then return 0; fi
    {
        echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        echo '<groupId>catchment</groupId><artifactId>peers</artifactId><version>1</version><dependencies>'
        for jar in "$@"; do
            echo "$jar" | awk -F: '{ printf "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version>", $1, $2, $3 }'
            echo '<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>'
        done
        echo '</dependencies></project>'
    } > "$folder/$name/pom.xml"
    mvn -q -B -f "$folder/$name/pom.xml" dependency:copy-dependencies -DoutputDirectory=jars \
        && echo "$*" > "$jars/.complete" || echo "$missing: Maven has not found its jars"
}

make_environment polars polars
make_environment pathway pathway pandas pyarrow
make_environment flink "apache-flink==$flink" && {
    fetch_jars flink "Flink reads no Parquet and no Kafka here" \
        "org.apache.flink:flink-sql-parquet:$flink" \
        "org.apache.flink:flink-shaded-hadoop-2-uber:2.8.3-10.0" \
        "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
}
# No connector for Spark 4.3 was found. These are of earlier releases, and of two, since the second has no newer one that
# could be had; the benchmark names both beside the version of Spark.
fetch_jars spark "plain Spark reads no Kafka here" \
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" \
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0" \
    "org.apache.kafka:kafka-clients:3.9.2" \
    "org.apache.commons:commons-pool2:2.13.1"
exit 0
