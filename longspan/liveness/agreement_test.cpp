#include "longspan/liveness/agreement.h"

#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

/// What each of three ranks throws when the ranks `failing` throw "no" from their phase.
std::vector<std::string> outcomes(const std::vector<int>& failing) {
  std::vector<std::string> outcome(3, "nothing");
  testing::run_ranks(3, [&](const Mesh& mesh) {
    const int rank = mesh.world.rank();
    try {
      all_or_none(mesh.world, [&] {
        for (int bad : failing) {
          if (bad == rank) throw UserError("no");
        }
      });
    } catch (const UserError& error) {
      outcome[rank] = std::string("said: ") + error.what();
    } catch (const FailedElsewhere&) {
      outcome[rank] = "silent";
    }
  });
  return outcome;
}

using Outcomes = std::vector<std::string>;

}  // namespace

TEST_CASE("agreement: one rank's failure is everyone's, said once") {
  CHECK(outcomes({}) == Outcomes{"nothing", "nothing", "nothing"});
  CHECK(outcomes({2}) == Outcomes{"said: rank 2: no", "silent", "silent"});
  CHECK(outcomes({0, 1, 2}) == Outcomes{"said: no", "silent", "silent"});
}

TEST_CASE("agreement: every rank knows whether it is nothing but a full disk") {
  for (const bool both_kinds : {false, true}) {
    std::vector<int> full(3, -1);
    testing::run_ranks(3, [&](const Mesh& mesh) {
      const int rank = mesh.world.rank();
      try {
        all_or_none(mesh.world, [&] {
          if (rank == 1) throw DiskFullError("full");
          if (rank == 2 && both_kinds) throw UserError("no");
        });
      } catch (const std::exception& error) {
        CHECK(is_agreed(mesh.world, error));
        full[rank] = is_disk_full(error) ? 1 : 0;
      }
    });
    CHECK(full == std::vector<int>(3, both_kinds ? 0 : 1));
  }
  CHECK_FALSE(is_agreed(Group(), std::runtime_error("a defect")));
}

TEST_CASE("agreement: alone, the exception itself comes through") {
  CHECK_THROWS_AS(all_or_none(Group(), [] { throw UserError("no"); }), UserError);
}

}  // namespace longspan
