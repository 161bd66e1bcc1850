#include "cleave/comm/bootstrap/rendezvous_protocol.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

namespace cleave::inline comm {

void Token::wipe() {
  explicit_bzero(data(), size());
}

bool is_same(const Token& a, const Token& b) {
  auto difference = std::byte{0};
  for (size_t i = 0; i < a.size(); ++i) difference |= a.byte(i) ^ b.byte(i);
  return difference == std::byte{0};
}

Token read_token(const std::string& path) {
  Token token{};
  if (path.empty()) return token;
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  CLEAVE_CHECK(file.is_open() && fstat(file.get(), &info) == 0, Code::kIo,
               "CLEAVE_TOKEN_FILE=", path, ": ", std::strerror(errno));
  CLEAVE_CHECK((info.st_mode & 077) == 0, Code::kIo, "CLEAVE_TOKEN_FILE=", path, " has mode ",
               std::oct, info.st_mode & 0777, "; others may not read it: chmod 600");
  CLEAVE_CHECK(read(file.get(), token.data(), token.size()) == static_cast<ssize_t>(token.size()),
               Code::kUsage, "CLEAVE_TOKEN_FILE=", path, " holds ", info.st_size,
               " bytes; it must hold 32 or more: head -c 32 /dev/urandom > FILE");
  return token;
}

uint64_t job_hash(const Environment& environment) {
  return XXH3_64bits(environment.job_id.data(), environment.job_id.size());
}

std::string host_id(const Environment& environment) {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  struct stat network {};
  stat("/proc/self/ns/net", &network);
  return str(name, ":", network.st_ino, ":", environment.host);
}

HostPlace place_of(const Environment& environment) {
  const std::string id = host_id(environment);
  return {.host = XXH3_64bits(id.data(), id.size()),
          .local_world_size = environment.local_world_size};
}

Status error_status(Code code, std::string_view text) {
  Status status{};
  status.magic = kJobMagic;
  status.code = static_cast<int32_t>(code);
  text.copy(status.text, sizeof(status.text) - 1);
  return status;
}

Status ok_status() {
  Status status{};
  status.magic = kJobMagic;
  return status;
}

std::string text_of(const Status& status) {
  return {status.text, strnlen(status.text, sizeof(status.text))};
}

}  // namespace cleave::inline comm
