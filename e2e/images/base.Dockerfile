FROM scratch
ADD rootfs.tar /
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin LANG=C.UTF-8
CMD ["python3"]
