#include "longspan/report/tensorboard.h"

#include <doctest/doctest.h>

namespace longspan {

TEST_CASE("tensorboard: the key's folder, else the surroundings', else one in output_dir") {
  OutputSettings config;
  config.output_dir = "out";
  CHECK(tensorboard_folder(config) == "out/runs");
  config.surroundings.logging_dir = "/events";
  CHECK(tensorboard_folder(config) == "/events");
  config.run_name = "second";
  CHECK(tensorboard_folder(config) == "/events/second");
  config.logging_dir = "own";
  CHECK(tensorboard_folder(config) == "own/second");
}

}  // namespace longspan
