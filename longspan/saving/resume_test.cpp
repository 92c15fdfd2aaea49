#include "longspan/saving/resume.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <optional>

#include "longspan/checkpoint/state_parts.h"
#include "longspan/comm/mesh.h"
#include "longspan/config/config.h"
#include "longspan/files/checksum_file.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {

TEST_CASE("resume: the checkpoint that is gone on from is kept from other runs while it is read") {
  const testing::TemporaryFolder place;
  const std::string folder = place / "checkpoint-3";
  std::filesystem::create_directories(folder + "/" + kStateFolder);
  write_training_state(folder, {});
  write_state_part(folder + "/" + state_part_name(1, 1), {});
  write_checksum_file(folder, checksums_of(folder, {}));
  Config config;
  config.output.output_dir = place / "another";
  config.output.resume_from_checkpoint = folder;
  testing::run_ranks(1, [&](const Mesh& mesh) {
    Notices alone{Rendezvous{}};
    Events silent(/*rank=*/0, /*sink=*/nullptr);
    std::optional<ResumePoint> point =
        find_resume_point(config.output, mesh.world, alone, {}, silent);
    REQUIRE(point);
    CHECK(point->folder == folder);
    const std::string checksums = folder + "/" + kChecksumFile;
    CHECK(FileClaim(checksums, FileClaim::Kind::kRemove).refused());
    point->in_use.reset();
    CHECK_FALSE(FileClaim(checksums, FileClaim::Kind::kRemove).refused());
  });
}

}  // namespace longspan
