// Digests of files, and stamps. A stamp shows that a file is unchanged, without reading the file.
// No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

/// The system's data on a file. The same stamp means the same contents: each write changes ctime,
/// which no program can set back.
struct FileStamp {
  int64_t size = 0;                    // bytes
  int64_t mtime_ns = 0, ctime_ns = 0;  // since 1970
  uint64_t inode = 0;
  bool operator==(const FileStamp&) const = default;
};

/// Throws UserError where the file is not accessible or not a regular file. Follows links.
FileStamp stamp_of_file(const std::string& path);

/// Bytes of a block. Files are read in blocks, so that several processes can share the reading.
inline constexpr int64_t kDigestBlock = int64_t{64} << 20;
int64_t num_digest_blocks(int64_t size);

/// XXH64 of one block, counted from 0. The last block may be shorter. Throws UserError.
uint64_t digest_of_block(const std::string& path, int64_t block);

/// Returns the file's digest from the digests of its blocks: for one block, the block's XXH64,
/// which equals the file's XXH64; for several blocks, the XXH64 of the blocks' digests in order.
uint64_t digest_from_blocks(const std::vector<uint64_t>& blocks);

}  // namespace longspan
