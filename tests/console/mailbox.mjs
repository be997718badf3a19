// A small mail server, which stores the mails of a gateway.

import { createServer } from 'node:net';

/// Accepts every mail, and calls those who wait for the next one.
export function mailbox() {
  const it = { mails: [], waiting: [] };
  it.server = createServer((socket) => {
    let [rest, data] = ['', null];
    socket.setEncoding('utf8');
    socket.on('error', () => {});
    socket.write('220 mail.example\r\n');
    socket.on('data', (piece) => {
      rest += piece;
      for (;;) {
        const end = rest.indexOf('\r\n');
        if (end < 0) return;
        const line = rest.slice(0, end);
        rest = rest.slice(end + 2);
        if (data !== null && line !== '.') {
          data += `${line}\n`;
          continue;
        }
        if (data !== null) {
          it.mails.push(data);
          it.waiting.splice(0).forEach((wake) => wake());
          data = null;
        } else if (line === 'DATA') {
          data = '';
          socket.write('354 go on\r\n');
          continue;
        }
        socket.write(line.startsWith('EHLO') ? '250-mail.example\r\n250 8BITMIME\r\n' : '250 ok\r\n');
      }
    });
  });
  it.next = async (count) => {
    while (it.mails.length < count) await new Promise((wake) => it.waiting.push(wake));
    const [head, ...body] = it.mails[count - 1].split('\n\n');
    const text = head.includes('base64')
      ? Buffer.from(body.join(''), 'base64').toString()
      : body.join('\n').replaceAll('=\n', '').replaceAll('=3D', '=');
    return text.match(/https?:\/\/\S+\/cabinet\/\w+\?token=\S+/)[0];
  };
  return it;
}
