#include "longspan/session/same_settings.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/testing/ranks.h"

namespace longspan {

TEST_CASE("same settings: a difference is one error on all ranks") {
  std::vector<std::string> errors(3);
  const auto compare = [&](int other_rank) {
    testing::run_ranks(3, [&](const Mesh& mesh) {
      const int rank = mesh.world.rank();
      const Settings own = {{"save_async", rank == other_rank ? "true" : "false"},
                            {"learning_rate", "1e-05"},
                            {"default_system", "one\ntwo"}};
      try {
        require_same_settings(mesh.world, own);
      } catch (const UserError& error) {
        errors[rank] = error.what();
      }
    });
  };
  compare(/*other_rank=*/-1);
  CHECK(errors == std::vector<std::string>(3));
  compare(/*other_rank=*/2);
  CHECK(errors == std::vector<std::string>(
                      3,
                      "The ranks have different configurations. Rank 0 has save_async: false. Rank "
                      "2 has save_async: true. Start all processes with the same keys."));
}

}  // namespace longspan
