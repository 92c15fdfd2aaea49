// What is in a file, as a number, and how to see without reading that it is still the same. No
// torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

/// What the system says of a file. As long as all of it is the same, so are the contents: writing
/// into a file moves its ctime, which nobody can set back.
struct FileStamp {
  int64_t size = 0;                    // bytes
  int64_t mtime_ns = 0, ctime_ns = 0;  // since 1970
  uint64_t inode = 0;
  bool operator==(const FileStamp&) const = default;
};

/// Throws UserError when it cannot be seen or is no regular file. Links are followed.
FileStamp stamp_of_file(const std::string& path);

/// A file is read in blocks of so many bytes, so that several processes can share it.
inline constexpr int64_t kDigestBlock = int64_t{64} << 20;
int64_t num_digest_blocks(int64_t size);

/// XXH64 of one block, counted from 0; the last one may be shorter. Throws UserError.
uint64_t digest_of_block(const std::string& path, int64_t block);

/// The file's digest from those of its blocks. With one block it is the block's own, the XXH64 of
/// the file; else it is the XXH64 of the blocks' digests one after the other.
uint64_t digest_from_blocks(const std::vector<uint64_t>& blocks);

}  // namespace longspan
