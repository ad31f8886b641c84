#include "server/store/network_file_system.h"

#include <sys/vfs.h>

namespace causeway::server {

absl::string_view NetworkFileSystemName(int64_t type) {
  // As 32 bits: some systems extend the sign. The numbers of linux/magic.h, and of those that are
  // no part of Linux.
  switch (static_cast<uint32_t>(type)) {
    case 0x6969:
      return "NFS";
    case 0x517B:
    case 0xFE534D42:
    case 0xFF534D42:
      return "SMB";
    case 0x00C36400:
      return "Ceph";
    case 0x5346414F:
    case 0x6B414653:
      return "AFS";
    case 0x01021997:
      return "9P";
    case 0x0BD00BD0:
      return "Lustre";
    case 0x47504653:
      return "GPFS";
    case 0x19830326:
      return "BeeGFS";
    case 0x7461636F:
      return "OCFS2";
    case 0x01161970:
      return "GFS2";
    default:
      return "";
  }
}

absl::string_view NetworkFileSystemOf(const std::string& path) {
  struct statfs facts {};
  return statfs(path.c_str(), &facts) == 0 ? NetworkFileSystemName(facts.f_type) : "";
}

}  // namespace causeway::server
